"""Releases, accounting, noise, the ledger and the certificate.

Nothing here holds a private record.
"""
