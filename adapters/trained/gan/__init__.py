"""DPGAN and PrivImage's half with a GAN: DP-SGD on a discriminator, a generator that learns from it alone."""
