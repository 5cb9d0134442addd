"""Ways to answer RANDOM_API and VARIATION_API, one per file; found by name through entry points."""
