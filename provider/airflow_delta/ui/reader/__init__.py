"""The processes that read logs for the pages, so that the API server holds no log in its memory."""
