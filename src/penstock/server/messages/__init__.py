"""Single messages for people: their story, why they wait, and how they are moved."""
