//! What the tests share: how to deploy Cilia, make pods, and talk between them.
