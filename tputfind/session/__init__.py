"""The parent: one measurement under way. No torch is imported here."""
