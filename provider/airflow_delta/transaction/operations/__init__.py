"""The operations that commits name in `commitInfo`."""
