"""FedFM: federated learning for parties whose data differ."""

__version__ = "0.1.0.dev0"
