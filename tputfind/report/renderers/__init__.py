"""Renderers of documents: terminal, Markdown, page, CSV, JSON."""
