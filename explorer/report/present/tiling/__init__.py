"""Words about tilings: what they would do, cost, and did."""
