"""Many specs on many devices: which is measured where and when, and what becomes of each."""
