"""What changes in the server, for whoever looks on: the feed of events, and the counts that go with it."""
