"""The channel between the parent process and its children: questions, answers, and failures of children."""
