"""Training with differential privacy by DP-SGD (Abadi et al. 2016), for any model and any loss.

`DPSGD` holds what is public, `releases` what it costs, `calibrated` the noise that a budget asks for; these load no
heavy library. `dp_sgd.training.Training` trains, `dp_sgd.forecast.dry_run` says beforehand what it will take.
"""

from adapters.trained.dp_sgd.budget import calibrated, releases
from adapters.trained.dp_sgd.hyperparameters import DPSGD

__all__ = ["DPSGD", "calibrated", "releases"]
