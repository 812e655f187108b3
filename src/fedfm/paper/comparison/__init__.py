"""The comparison of the field's methods: its plan, the settings it chooses, its document."""
