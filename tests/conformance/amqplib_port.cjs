// Loaded before a suite that knows RabbitMQ's usual port alone: its connections go to the ports of the environment.
'use strict';

const net = require('node:net');

const real = net.connect;
net.connect = (options, ...rest) => {
  if (!options || Number(options.port) !== 5672) return real(options, ...rest);
  const port = Number(net.isIPv6(options.host) ? process.env.AMQP_PORT_IPV6 : process.env.AMQP_PORT);
  return real({ ...options, port }, ...rest);
};
