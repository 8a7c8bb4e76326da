"""The workflow `review`: real tools on a real folder, fixes only as approved, and only on a copy.

Read `workflow` first, which says what happens in which order. The other modules know nothing of Towline's
engine and can be used and tested alone:

    models      what the parts hand to each other
    archives    unpacks an uploaded zip or tar.gz
    inventory   walks the folder and freezes the Python files into a copy
    copies      the run's own folder, where copies are complete or absent
    tools       ruff and byte-compilation on a batch of files
    fixes       ruff's safe fixes as a unified diff, and the copy that has them
    report      Markdown and JSON for people and programs
"""
