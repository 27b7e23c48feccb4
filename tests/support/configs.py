"""Small configurations of transformers models, saved as the hub has them."""

from pathlib import Path


def save_config(folder: Path, kind: str, **options: object) -> str:
    """Save the configuration of a kind of model, and return the name under which the tool finds it."""
    import transformers  # takes seconds, which a collection of the tests would take too

    transformers.AutoConfig.for_model(kind, **options).save_pretrained(folder)
    return f"hf:{folder}"
