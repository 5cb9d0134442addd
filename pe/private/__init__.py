"""Sources of private records, the private data set, and its embeddings.

Private records are read to embed them, to count votes, to fit a generator and to evaluate
a run; see `PrivateDataset` for what is public and what is confidential.
"""
