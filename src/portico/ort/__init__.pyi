from portico.ort.accelerator import ORTAccelerator as ORTAccelerator
from portico.ort.api import compile as compile
from portico.ort.report import Report as Report
from portico.ort.settings import SessionSettings as SessionSettings
from portico.ort.strategy import ORTDDPStrategy as ORTDDPStrategy
from portico.ort.strategy import ORTStrategy as ORTStrategy
