"""Private work on a Ray cluster: records embedded by its workers, votes counted shard by shard."""
