"""DP-Gaussian: one noisy sum of images and of their products, and Gaussians that follow from it."""
