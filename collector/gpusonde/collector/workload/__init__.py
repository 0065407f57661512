"""The controller: how long training takes, from networks' graphs; asked over gRPC, computed in processes of its own."""
