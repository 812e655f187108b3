"""The round: the messages, the server's side, the clients' side, and the state."""
