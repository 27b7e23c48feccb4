"""What records mean: answers, verdicts, findings and notices. Reads no file and starts nothing."""
