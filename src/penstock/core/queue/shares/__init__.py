"""Who may have how much: one lease per group key, fair shares of tenants, rates."""
