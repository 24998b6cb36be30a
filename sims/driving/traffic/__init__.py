"""Road users: order on the lanes, right of way, the ego, a rule-based driver."""
