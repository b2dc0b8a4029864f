"""The parts of Airflow that it does not declare public: no other module of this package imports one.

Public are ``airflow.sdk`` and the extension points of Airflow (``airflow.triggers.base``, ``airflow.listeners``, the commands and
plugins of a provider), other providers, and the REST API. Each module here says what its imports are for, which public
replacement they wait for, and what happens without them. All were tried on Airflow 3.3.1, 3.3.2 and 3.4.0b2
(``make test-versions``).

Nothing is imported here at once: callers import the module they need where they need it.
"""
