"""The night's page: recent alerts in a database, and in a browser."""
