"""The child: the room that builds models and times them. With ``stages`` the only one that reaches torch."""
