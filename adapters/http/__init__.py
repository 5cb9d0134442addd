"""The one engine for all endpoints.

It has keys, connections, retries, rates and settings, and reads the images that come back. Hosts of
your own import these names.
"""

from adapters.http.answers import Received as Received
from adapters.http.answers import base64_of as base64_of
from adapters.http.answers import data_uri as data_uri
from adapters.http.answers import encode_picture as encode_picture
from adapters.http.answers import entries_at as entries_at
from adapters.http.answers import images_in as images_in
from adapters.http.answers import value_at as value_at
from adapters.http.client import HTTPClient as HTTPClient
from adapters.http.client import OnFirstUse as OnFirstUse
from adapters.http.client import object_of as object_of
from adapters.http.client import respond as respond
from adapters.http.credentials import Credentials as Credentials
from adapters.http.faults import Fault as Fault
from adapters.http.faults import Rejected as Rejected
from adapters.http.host import Endpoints as Endpoints
from adapters.http.host import Host as Host
from adapters.http.host import ImageCall as ImageCall
from adapters.http.host import Sending as Sending
from adapters.http.host import hosted_starter as hosted_starter
from adapters.http.host import non_null as non_null
from adapters.http.retries import Policy as Policy
from adapters.http.retries import workers_for as workers_for
from adapters.http.settings import Concurrent as Concurrent
from adapters.http.settings import Connection as Connection
from adapters.http.settings import Pictures as Pictures
from adapters.http.settings import Prompted as Prompted
from adapters.http.settings import Scalar as Scalar
from adapters.http.settings import Seconds as Seconds
from adapters.http.settings import Size as Size
from adapters.http.settings import Worded as Worded
