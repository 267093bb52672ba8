/**
 * The public modules of Heddle, each as a namespace.
 */
