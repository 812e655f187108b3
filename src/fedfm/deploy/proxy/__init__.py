"""The parts of the proxy: its limits, its connections, and the clients that it knows."""
