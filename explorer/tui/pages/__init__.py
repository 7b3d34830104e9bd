"""Pages: what each tab and dialog says, as lines. Pure functions of facts and a width."""
