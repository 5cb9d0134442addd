"""Training with differential privacy by DP-SGD (Abadi et al. 2016), for any model and any loss."""
