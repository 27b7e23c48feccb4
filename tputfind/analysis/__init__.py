"""Interpretation of records: answers, verdicts, findings and notices. Reads no file and starts no process."""
