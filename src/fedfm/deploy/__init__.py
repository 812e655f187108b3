"""Deployment on Flower: the methods of the simulation across real machines."""
