"""`page-bench report`: tables and figures from traces alone."""
