"""Facts read from a user's file without running it."""

import pytest

from tputfind.worker.models.user_code import callables_in, factories_of, is_entry_point

GUARDED = "\nif __name__ == '__main__':\n    main()\n"


@pytest.mark.parametrize(
    ("body", "is_one"),
    [
        ("def main():\n    train()" + GUARDED, True),
        ("def main():\n    return" + GUARDED, True),
        ("def main():\n    train()\nmain()", True),
        ("def main(a=1):\n    train()\nif __name__ == '__main__':\n    print(main(2))", True),
        ("def main():\n    return net" + GUARDED, False),
        ("def main():\n    if x:\n        return net, inputs" + GUARDED, False),
        ("def main():\n    yield net" + GUARDED, False),
        ("@factory\ndef main():\n    train()" + GUARDED, False),
        ("def main():\n    train()", False),  # not called: it may be a factory that fails
        ("class main(nn.Module):\n    pass" + GUARDED, False),
        ("main = make" + GUARDED, False),
        ("def main(:" + GUARDED, False),
    ],
)
def test_entry_point_is_a_called_function_without_result(tmp_path, body, is_one):
    (tmp_path / "train.py").write_text(body)

    assert is_entry_point(tmp_path / "train.py", "main") is is_one


def test_callables_of_a_file_are_its_public_functions_and_classes(tmp_path):
    file = tmp_path / "a.py"
    file.write_text(
        "raise SystemExit\nimport os\nclass Net:\n    def inner(self): ...\ndef make(): ...\ndef _own(): ..."
    )

    assert callables_in(file) == ["Net", "make"]
    assert factories_of(file) == "it defines Net, make"
    assert callables_in(tmp_path / "none.py") == []
    assert factories_of(tmp_path / "none.py") == ""
    file.write_bytes(b"\xff\x00")
    assert callables_in(file) == []


def test_factories_of_a_long_file_are_named_up_to_eight(tmp_path):
    (tmp_path / "a.py").write_text("\n".join(f"def f{number}(): ..." for number in range(10)))

    assert factories_of(tmp_path / "a.py").endswith("f6, f7 and 2 more")
