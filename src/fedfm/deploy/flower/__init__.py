"""The adapter to Flower's private modules: nothing else in FedFM imports them.

Flower offers programs, not functions, for what stands here: the connection of a node (`fleet`), a
superlink whose interfaces ask for credentials (`superlink`), calls to its Control interface
(`control`) and the task of a run's server (`task`). Tried with the versions of Flower that
docs/deploy.md names.
"""
