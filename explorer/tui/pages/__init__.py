"""From facts to lines: what each tab and dialog says. Pure functions of facts and a width."""
