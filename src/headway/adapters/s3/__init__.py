"""S3: model files and artifacts, leases and records. Any server with conditional puts (`If-None-Match: *`) will do."""

from headway.adapters.s3.client import S3Client, S3Connection, join, split
from headway.adapters.s3.lease import S3Lease
from headway.adapters.s3.ledger import S3Ledger
from headway.adapters.s3.objects import S3Objects
from headway.adapters.s3.store import S3WeightStore

__all__ = ["S3Client", "S3Connection", "S3Lease", "S3Ledger", "S3Objects", "S3WeightStore", "join", "split"]
