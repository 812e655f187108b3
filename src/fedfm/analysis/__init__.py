"""FedFM's convergence analysis, checked with numbers."""
