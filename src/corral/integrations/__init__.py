"""What makes other libraries know corral; each module is named after the library and imported for its sake alone."""
