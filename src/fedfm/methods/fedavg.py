"""FedAvg: McMahan et al., Communication-Efficient Learning of Deep Networks (AISTATS 2017).

x+ = sum_i p_i y_i with p_i the client's share of the cohort's data: what a round does when no
piece asks for anything else.
"""

from dataclasses import dataclass

from fedfm.methods.base import Piece


@dataclass(frozen=True)
class FedAvg(Piece):
    """Plain local SGD, models averaged by data share (Eq. 11 of the FedFM paper).

    Examples:
        >>> from fedfm import compose
        >>> compose(FedAvg()).name
        'fedavg'
    """

    name = "fedavg"
    adds_nothing = True
