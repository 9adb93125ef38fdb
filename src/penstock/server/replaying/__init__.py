"""Subscriptions to topics: replay from a bookmark, then live; without a bookmark from now on.  Nothing is leased.

    Replays (one an engine)
      |- Feed       what one selection of topics and one filter let through of what was just committed; matched once
      |    |- LogSource ... LogSource    each with a cursor, an end, a rate; followed by somebody (`server.follow`)
      |- reading    pages of the log for those who are not live yet, or not any more; off the loop

A source's cursor is the LSN that it looks at next; everything below has been handed over or did not match.  It is
*live* when the cursor is where its feed is: then pages of the feed go straight to its reader.  Otherwise it reads the
log from its cursor on until it meets the feed, so nothing is left out and nothing comes twice, however often it falls
behind.  Rows are handed over when they are durable, never before.

Whoever in this process wants the messages of topics, as batches, from an LSN on:

    selection = Selection.topic(vhost, exchange, name)        # or .pattern(vhost, exchange, regex)
    follower = engine.replays.follow(selection, taker, start=lsn)         # start=None: what is published from now on
    follower.close()

`taker` is a `follow.Taker`: it is handed `page.Page`s in the order of the log on the loop's thread, says how much room
it has, and hears when it is level with the log.  `follow` decides nothing and may be called inside a turn.
The doors use `Replays.subscribe`, which understands bookmarks, filters as text and rates.
"""
