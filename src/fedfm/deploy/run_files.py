"""Files in a run's folder that several programs know."""

MESSAGE_LIMIT = "message_limit"
"""The size in bytes of the largest answer that the server expects; the proxy reads it."""
