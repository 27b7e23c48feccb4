"""The mailbox between the parent and its children: questions, answers, and deaths told as answers."""
