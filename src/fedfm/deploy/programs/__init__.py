"""What the programs of a federation share: processes, addresses and logs."""
