"""Pages: functions that draw the contents of tabs and dialogs from facts and a width."""
