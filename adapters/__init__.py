"""Ways to answer RANDOM_API and VARIATION_API, one per file. Found by name through entry points."""
