"""Several services, or one of them with everybody else played, over real servers."""
