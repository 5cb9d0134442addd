"""DP-ImgSyn: public images, aligned with a private classifier's view of the private ones, and labelled by it.

The classifier is trained by DP-SGD, and what it sees of the private images leaves as one noisy sum of clipped moments;
all else is post-processing. docs/privacy.md says what the published method does instead.
"""
