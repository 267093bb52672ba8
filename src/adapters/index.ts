/**
 * The adapters to model providers, one module per wire protocol.
 */
