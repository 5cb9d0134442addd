"""The journal's tables, and how those of the version before become them."""

SCHEMA_VERSION = 4

SCHEMA = """
CREATE TABLE chunks (
    id INTEGER PRIMARY KEY,
    phase TEXT NOT NULL,
    file TEXT,               -- the good items' columns and their indices; NULL when there were none
    sha256 TEXT,
    answered INTEGER NOT NULL,
    calls INTEGER NOT NULL,
    images INTEGER NOT NULL,
    tokens INTEGER NOT NULL, -- of all kinds
    seconds REAL NOT NULL,   -- from the request to its answer
    text_in INTEGER NOT NULL DEFAULT 0,  -- tokens of that kind
    image_in INTEGER NOT NULL DEFAULT 0,
    text_out INTEGER NOT NULL DEFAULT 0,
    image_out INTEGER NOT NULL DEFAULT 0,
    megapixels REAL NOT NULL DEFAULT 0,
    cost REAL NOT NULL DEFAULT 0  -- where several generators have prices of their own
) STRICT;
CREATE INDEX chunks_by_phase ON chunks (phase);
CREATE TABLE misses (
    chunk INTEGER NOT NULL REFERENCES chunks (id),
    item INTEGER NOT NULL,
    outcome TEXT NOT NULL CHECK (outcome IN ('refused', 'failed')),
    retryable INTEGER NOT NULL,  -- 1; and 2 for a failure that does not count as an attempt
    reason TEXT NOT NULL
) STRICT;
CREATE TABLE charges (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    declared TEXT NOT NULL,  -- the release as JSON
    unsafe INTEGER NOT NULL  -- drawn from noise that a test can foretell
) STRICT;
CREATE TABLE files (
    name TEXT PRIMARY KEY,   -- relative to the run's directory
    sha256 TEXT NOT NULL
) STRICT;
CREATE TABLE events (
    id INTEGER PRIMARY KEY,
    at TEXT NOT NULL,        -- UTC
    event TEXT NOT NULL      -- started, resumed, finished, …
) STRICT;
CREATE TABLE releases (
    name TEXT PRIMARY KEY,
    file TEXT NOT NULL,
    sha256 TEXT NOT NULL
) STRICT;
"""

VERSION_BEFORE = 3
"""Whose chunks lack costs."""
FROM_BEFORE = """
ALTER TABLE chunks ADD COLUMN cost REAL NOT NULL DEFAULT 0;
"""
SEEN_FROM_BEFORE = "CREATE TEMP VIEW chunks AS SELECT *, 0.0 AS cost FROM main.chunks"

JOBS = """
CREATE TABLE IF NOT EXISTS jobs (
    request TEXT PRIMARY KEY,
    job TEXT NOT NULL,               -- as the host names it
    items BLOB NOT NULL DEFAULT x''  -- int64, of the request; none in a journal from before
) STRICT
"""
"""Which a journal of this version may lack."""
JOBS_FROM_BEFORE = "ALTER TABLE jobs ADD COLUMN items BLOB NOT NULL DEFAULT x''"
